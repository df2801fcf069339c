"""Lines of source and stacks of names, as `jax.extend.source_info_util` has them."""

from volta_fn.extend.core import current as current
from volta_fn.extend.core import current_name_stack as current_name_stack
from volta_fn.extend.core import extend_name_stack as extend_name_stack
from volta_fn.extend.core import new_name_stack as new_name_stack
from volta_fn.extend.core import new_source_info as new_source_info
from volta_fn.extend.core import reset_name_stack as reset_name_stack
from volta_fn.extend.core import set_name_stack as set_name_stack
from volta_fn.extend.core import summarize as summarize
from volta_fn.extend.core import transform_name_stack as transform_name_stack
from volta_fn.extend.core import user_context as user_context
from volta_fn.source import NameStack as NameStack
from volta_fn.source import SourceInfo as SourceInfo
