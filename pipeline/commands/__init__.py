"""The commands of `pipeline`: their options and help texts. What each does stands in the module that it imports."""
