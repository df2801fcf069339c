from volta_fn.web.export import Digits as Digits
from volta_fn.web.export import ExportedPage as ExportedPage
from volta_fn.web.export import Function as Function
from volta_fn.web.export import Plain as Plain
from volta_fn.web.export import Text as Text
from volta_fn.web.export import export_web as export_web
