<?php

// What composer dump-autoload writes has a class of its own for this.
return require __DIR__ . '/composer/loader.php';
