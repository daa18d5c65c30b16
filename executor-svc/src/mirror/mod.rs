//! From the registry to verified files: the catalog and the agents as they were last sent, and the packages by digest.
