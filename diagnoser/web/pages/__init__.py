"""The pages that people read: a route, a view model and charts for each."""
