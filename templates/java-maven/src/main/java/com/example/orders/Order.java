package com.example.orders;

import java.math.BigDecimal;
import java.util.List;

record Order(String customer, List<Item> items) {
    record Item(String name, BigDecimal price, int count) {}
}
