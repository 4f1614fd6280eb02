"Honest stand-ins for servers that tests cannot have."
