class raising {
    static final int VALUE = fail();

    static int fail() {
        throw new IllegalStateException("at import");
    }

    static int handle() {
        return VALUE;
    }
}
