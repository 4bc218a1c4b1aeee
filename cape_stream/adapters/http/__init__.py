"""HTTP for operators: the admin API of a dispatcher, on Starlette and uvicorn."""
