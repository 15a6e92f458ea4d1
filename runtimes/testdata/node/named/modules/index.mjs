export const handle = () => 'index.mjs';
