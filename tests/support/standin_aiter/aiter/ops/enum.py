import importlib

ActivationType = type(importlib.import_module("module_aiter_core").ActivationType(0))
