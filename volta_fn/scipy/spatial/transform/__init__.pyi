from volta_fn.scipy.spatial.transform.rotation import Rotation as Rotation
from volta_fn.scipy.spatial.transform.rotation import Slerp as Slerp
