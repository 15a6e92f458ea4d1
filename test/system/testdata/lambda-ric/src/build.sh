# Compiles the client as its own install scripts do, and leaves what it was made of behind.
mkdir -p out/node_modules
cp index.js out
cp -R /node_modules/aws-lambda-ric ric
# Debian's maintainer scripts, which would give them their plain names, do not run.
ACLOCAL=$(echo /usr/bin/aclocal-*)
AUTOMAKE=$(echo /usr/bin/automake-*)
export ACLOCAL AUTOMAKE CC=gcc CXX=g++ npm_config_nodedir=/usr
(cd ric && sh scripts/preinstall.sh && node-gyp rebuild) >log 2>&1 || { tail -n 20 log; exit 1; }
cp ric/build/Release/rapid-client.node ric/dist
rm -r ric/build ric/deps
mv ric out/node_modules/aws-lambda-ric
