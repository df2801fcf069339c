from volta_fn.errors import CheckError as CheckError
from volta_fn.experimental.checkify.checks import ErrorCategory as ErrorCategory
from volta_fn.experimental.checkify.checks import all_checks as all_checks
from volta_fn.experimental.checkify.checks import automatic_checks as automatic_checks
from volta_fn.experimental.checkify.checks import check as check
from volta_fn.experimental.checkify.checks import debug_check as debug_check
from volta_fn.experimental.checkify.checks import div_checks as div_checks
from volta_fn.experimental.checkify.checks import float_checks as float_checks
from volta_fn.experimental.checkify.checks import index_checks as index_checks
from volta_fn.experimental.checkify.checks import nan_checks as nan_checks
from volta_fn.experimental.checkify.checks import user_checks as user_checks
from volta_fn.experimental.checkify.error import Error as Error
from volta_fn.experimental.checkify.error import check_error as check_error
from volta_fn.experimental.checkify.error import init_error as init_error
from volta_fn.experimental.checkify.functionalize import checkify as checkify

JaxRuntimeError = CheckError
