"""The ground floor: values, errors, units and environment. Imports the standard library only."""
