"""The commands of `pipeline`: their options and help texts. Each imports the module that does its work."""
