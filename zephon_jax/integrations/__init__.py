"""Adapters for training frameworks that bring a loop of their own. Nothing below knows of them; each is one module."""
