"""Configs of the models that ship with Arachne, one Hugging Face config.json a model."""
