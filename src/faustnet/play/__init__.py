"""A page that runs a trained model in the browser: draw an image, and see the distances and the vote of every layer."""
