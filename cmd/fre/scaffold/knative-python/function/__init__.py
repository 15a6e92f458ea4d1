from .func import new
