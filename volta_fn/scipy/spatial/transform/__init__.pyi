from volta_fn.scipy.spatial.transform.rotation import Rotation as Rotation
from volta_fn.scipy.spatial.transform.slerp import Slerp as Slerp
