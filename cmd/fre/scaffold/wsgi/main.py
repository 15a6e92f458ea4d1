from flask import Flask, jsonify, request

app = Flask(__name__)


@app.post("/greet/<name>")
def greet(name):
    return jsonify(hello=name, q=request.args["q"], body=request.get_data(as_text=True))
