from volta_fn.errors import CheckError as CheckError
from volta_fn.experimental.checkify.functionalize import Error as Error
from volta_fn.experimental.checkify.functionalize import ErrorCategory as ErrorCategory
from volta_fn.experimental.checkify.functionalize import all_checks as all_checks
from volta_fn.experimental.checkify.functionalize import automatic_checks as automatic_checks
from volta_fn.experimental.checkify.functionalize import check as check
from volta_fn.experimental.checkify.functionalize import check_error as check_error
from volta_fn.experimental.checkify.functionalize import checkify as checkify
from volta_fn.experimental.checkify.functionalize import debug_check as debug_check
from volta_fn.experimental.checkify.functionalize import div_checks as div_checks
from volta_fn.experimental.checkify.functionalize import float_checks as float_checks
from volta_fn.experimental.checkify.functionalize import index_checks as index_checks
from volta_fn.experimental.checkify.functionalize import init_error as init_error
from volta_fn.experimental.checkify.functionalize import nan_checks as nan_checks
from volta_fn.experimental.checkify.functionalize import user_checks as user_checks

JaxRuntimeError = CheckError
