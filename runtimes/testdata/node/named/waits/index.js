await null; // top level
export const handle = () => 'type';
