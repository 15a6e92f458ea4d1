import ctypes

yaml = ctypes.CDLL("libyaml-0.so.2")
yaml.yaml_get_version_string.restype = ctypes.c_char_p


def handle(event, context):
    return {"libyaml": yaml.yaml_get_version_string().decode()}
