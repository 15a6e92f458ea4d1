package fre.bootstrap;

import fre.Context;
import fre.Event;
import fre.Json;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The method that a handler names, and what it is called with. */
final class Handler {
    private final Method method;
    private final Object instance; // null for a static method
    private final Class<?>[] wanted;

    /** Loads the class of "Class.method", initialises it and makes an instance where the method needs one. */
    Handler(ClassLoader loader, String name) throws Throwable {
        int dot = name.lastIndexOf('.');
        if (dot <= 0 || dot == name.length() - 1) {
            throw new IllegalArgumentException("handler " + Json.write(name) + " is not Class.method");
        }
        Class<?> c;
        try {
            c = Class.forName(name.substring(0, dot), true, loader);
        } catch (ExceptionInInitializerError e) {
            throw e.getCause() == null ? e : e.getCause();
        } catch (ClassNotFoundException e) {
            throw e.getMessage().equals(name.substring(0, dot))
                ? new ClassNotFoundException("the function has no class " + e.getMessage()) : e;
        }
        method = find(c, name.substring(dot + 1));
        method.setAccessible(true);
        wanted = method.getParameterTypes();
        if (Modifier.isStatic(method.getModifiers())) {
            instance = null;
            return;
        }
        Constructor<?> make;
        try {
            make = c.getDeclaredConstructor();
        } catch (NoSuchMethodException e) {
            throw new NoSuchMethodException(c.getName() + " has no constructor without parameters, and " + method.getName() + " is not static");
        }
        make.setAccessible(true);
        instance = make.newInstance();
    }

    /** Of the methods of that name the one to call: with the most parameters of those whose types we know. */
    private static Method find(Class<?> c, String name) throws NoSuchMethodException {
        Method best = null;
        String why = c.getName() + " has no method " + name;
        for (Class<?> k = c; k != null && k != Object.class; k = k.getSuperclass()) {
            for (Method m : k.getDeclaredMethods()) {
                if (!m.getName().equals(name) || m.isBridge() || Modifier.isAbstract(m.getModifiers())) {
                    continue;
                }
                Class<?> unknown = null;
                for (Class<?> p : m.getParameterTypes()) {
                    unknown = known(p) || unknown != null ? unknown : p;
                }
                if (unknown != null || m.getParameterCount() > 2) {
                    why = c.getName() + "." + name + " takes " + (unknown == null ? m.getParameterCount() + " parameters" : "a " + unknown.getName())
                        + ": a handler takes an event (fre.Event, byte[], String, InputStream, Map, List or Object) and a fre.Context, or less";
                    continue;
                }
                if (best != null && best.getDeclaringClass() == k && best.getParameterCount() == m.getParameterCount()) {
                    throw new NoSuchMethodException(c.getName() + " has several methods " + name + " matching the handler");
                }
                if (best == null || best.getDeclaringClass() == k && best.getParameterCount() < m.getParameterCount()) {
                    best = m;
                }
            }
            if (best != null) {
                return best;
            }
        }
        throw new NoSuchMethodException(why);
    }

    private static boolean known(Class<?> p) {
        return p == Event.class || p == Context.class || p == byte[].class || p == String.class || p == InputStream.class
            || p == Map.class || p == List.class || p == Object.class;
    }

    Object call(Event event, Context context) throws Throwable {
        Object[] args = new Object[wanted.length];
        for (int i = 0; i < args.length; i++) {
            args[i] = argument(wanted[i], event, context);
        }
        return method.invoke(instance, args);
    }

    private static Object argument(Class<?> p, Event event, Context context) {
        if (p == Event.class) {
            return event;
        }
        if (p == Context.class) {
            return context;
        }
        if (p == byte[].class) {
            return event.body();
        }
        if (p == String.class) {
            return event.text();
        }
        if (p == InputStream.class) {
            return new ByteArrayInputStream(event.body());
        }
        if (event.body().length == 0) {
            return p == Map.class ? new LinkedHashMap<>() : p == List.class ? new ArrayList<>() : null;
        }
        Object v = event.json();
        if (!p.isInstance(v) && p != Object.class) {
            throw new IllegalArgumentException("the event is no JSON " + (p == Map.class ? "object" : "array"));
        }
        return v;
    }
}
