package live

// MostPublishers is of the tests beside the package.
const MostPublishers = mostPublishers
