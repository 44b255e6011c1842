"""Commands around specjax: getting a model, setting the environment up."""
