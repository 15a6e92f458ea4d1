<?php

$vendorDir = dirname(__DIR__);

return [
    'acme/money/functions' => $vendorDir . '/acme/money/functions.php',
];
