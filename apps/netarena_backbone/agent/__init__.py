"""Scripted agents of the backbone application."""
