import functions_framework
from markupsafe import escape


@functions_framework.http
def hello_http(request):
    request_json = request.get_json(silent=True)
    name = request_json["name"] if request_json and "name" in request_json else "World"
    return f"Hello {escape(name)}!"
