"""The values that the state has under its keys: their content, their form, and the policy if one is damaged."""
