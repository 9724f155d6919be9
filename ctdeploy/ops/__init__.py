"""The verbs: data in, result out. Nothing here prints; progress goes to a Reporter."""
