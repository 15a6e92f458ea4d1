package transcode

// MostOfSound exports mostOfSound to the package's external tests.
const MostOfSound = mostOfSound
