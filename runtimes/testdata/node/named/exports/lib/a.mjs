export const handle = () => 'exports';
