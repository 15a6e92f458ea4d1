<?php

$vendorDir = dirname(__DIR__);
$baseDir = dirname($vendorDir);

return [
    'App\\' => [$baseDir . '/lib'],
    'Acme\\Money\\' => [$vendorDir . '/acme/money/src'],
];
