"""The pages that people read: a route, a view model and charts for each. A module with a ``router`` is served."""
