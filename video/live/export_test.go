package live

// MostPublishers exports mostPublishers to the package's external tests.
const MostPublishers = mostPublishers
