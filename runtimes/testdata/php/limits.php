<?php

function handle($event, $context)
{
    return [(int) ini_get('memory_limit')];
}
