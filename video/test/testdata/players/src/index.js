exports.handle = async () => "players";
