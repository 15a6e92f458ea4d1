import os

import psycopg
from psycopg import sql


def handle(event, context):
    table = event.query.get("table", ["orders"])[0]
    try:
        with psycopg.connect(os.environ["DATABASE"]) as connection:
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            (count,) = connection.execute(query).fetchone()
            return {"table": table, "rows": count}
    except psycopg.OperationalError as error:
        return 503, {"Content-Type": "text/plain"}, f"no database (libpq {psycopg.pq.version()}): {error}\n"
