from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def greet(request):
    body = await request.body()
    return JSONResponse({"hello": request.path_params["name"], "q": request.query_params["q"], "body": body.decode()})


app = Starlette(routes=[Route("/greet/{name}", greet, methods=["POST"])])
