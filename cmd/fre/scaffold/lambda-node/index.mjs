export const handler = async (event, context) => {
  const name = event.queryStringParameters?.name ?? 'World';
  return {
    statusCode: 201,
    headers: { 'Content-Type': 'application/json' },
    cookies: ['seen=1'],
    body: JSON.stringify({ message: `Hello, ${name}`, path: event.rawPath, method: event.requestContext.http.method, function: context.functionName }),
  };
};
