<?php

spl_autoload_register(static function (string $class): void {
    foreach (require __DIR__ . '/autoload_psr4.php' as $prefix => $directories) {
        if (!str_starts_with($class, $prefix)) {
            continue;
        }
        $name = strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
        foreach ($directories as $directory) {
            if (is_file("$directory/$name")) {
                require "$directory/$name";
                return;
            }
        }
    }
});

foreach (require __DIR__ . '/autoload_files.php' as $file) {
    require_once $file;
}
