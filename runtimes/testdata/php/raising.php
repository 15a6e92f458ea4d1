<?php

function fail()
{
    throw new ValueError('at import');
}

fail();
