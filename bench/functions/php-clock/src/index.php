<?php

function handle($event, $context)
{
    return (string) hrtime(true);
}
