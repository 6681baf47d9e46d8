"""MALT capacity planning: an agent changes and questions the model of a data-centre network."""
