from volta_fn.transforms.custom.custom_vmap import custom_vmap as custom_vmap
from volta_fn.transforms.custom.custom_vmap import sequential_vmap as sequential_vmap
