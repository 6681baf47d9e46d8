"""MALT capacity planning: tasks and questions about the model of a data-centre network."""
