"""Error of the server and its client."""


class RequestError(ValueError):
    """Request that the server refuses. `status` is the HTTP status code."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status
