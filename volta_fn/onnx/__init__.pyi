from volta_fn.onnx.loading import OnnxFunction as OnnxFunction
from volta_fn.onnx.loading import load as load
from volta_fn.onnx.saving import save as save
