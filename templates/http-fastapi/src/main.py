from fastapi import FastAPI, Request

app = FastAPI()


@app.post("/items/{number}")
async def item(number: int, request: Request, q: str = ""):
    return {"number": number, "q": q, "body": (await request.body()).decode()}
