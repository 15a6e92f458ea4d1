package transcode

// MostOfSound is of the tests beside the package.
const MostOfSound = mostOfSound
