"""Join the files of all ranks into one incident: values, hardware, infection, and the sentences about them."""
