from volta_fn.web.export import ExportedPage as ExportedPage
from volta_fn.web.export import Function as Function
from volta_fn.web.export import export_web as export_web
from volta_fn.web.layouts import Digits as Digits
from volta_fn.web.layouts import Plain as Plain
from volta_fn.web.layouts import Text as Text
